"""What differs between families of encoders: the table with a row for each, and those with a file of their own."""
