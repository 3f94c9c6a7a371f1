"""Tables, plots and pages of measured runs. Nothing here trains or measures."""
