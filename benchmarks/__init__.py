"""What observing costs, against no tool and against the tools people use today."""
