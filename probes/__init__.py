"""What can be seen from outside: BPF programs and the other observers."""
