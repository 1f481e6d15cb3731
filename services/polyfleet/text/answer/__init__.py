"""What an answer is made of: what the model thinks, what it says, and the tools that it calls. Pure."""
