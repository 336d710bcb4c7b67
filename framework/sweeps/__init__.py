"""What a sweep, or a single run, leaves behind: a record of each job, a table of all, a page to see and hear."""
