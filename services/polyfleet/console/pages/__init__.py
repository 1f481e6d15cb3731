"""What the console answers: a module a page, each with the routes of its page."""
