"""Design rules, and the evidence behind each."""
