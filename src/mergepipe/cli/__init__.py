"""Words typed by people: parse them, call one api function, print one report."""
