"""Share of a long run that trains, through failures."""
