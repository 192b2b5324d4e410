"""What files of strangers, full disks and crashes cannot do."""
