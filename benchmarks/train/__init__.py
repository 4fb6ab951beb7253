"""How many samples a second a training takes, and after how many seconds it is as accurate."""
