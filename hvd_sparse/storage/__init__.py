"""What is written to disks: whole files, under their names only when they are complete."""
