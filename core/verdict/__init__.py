"""What a finished file is worth: measured against its source, judged by thresholds that were set before."""
