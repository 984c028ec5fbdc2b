"""What a broker counts about itself: plain numbers, read by whoever asks.

No locks, because everything is counted on the loop's thread; no clock, because times are handed in. Counting is always on and
costs about a tenth of a microsecond each; what it takes to show the numbers is paid only when somebody asks.
"""
