"""Images in prompts: from pixels to the rows that stand in the place of their tokens."""
