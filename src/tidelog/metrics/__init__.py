"""The numbers that a broker counts about itself, for anyone to read.

There are no locks, because everything is counted on the loop's thread, and no clock, because times are passed in. Counting is
always on and costs about a tenth of a microsecond each time. The cost of showing the numbers is paid only when somebody asks.
"""
