"""A simulation decides as the planner does, reports what happened, and refuses wrong traces."""
