"""What uses a finished model: exports, the hub, files of any size encoded, nearest lines."""
