"""What uses a finished model: files of any size encoded, nearest lines."""
