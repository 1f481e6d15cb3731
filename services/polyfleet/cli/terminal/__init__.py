"""What people see and type: tables, bars, streamed text, the keyboard."""
