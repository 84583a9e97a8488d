"""A matrix of measured runs, and its page. From what a person asks for to what it says:

    options   ->  matrix                  what is compared, under which loads
    matrix    ->  loads, live, running    the runs, one after the other (servers: those we start)
    runs      ->  folder                  what was measured, on disk
    folder    ->  results                 figures of each cell, and speed_ups with their intervals
    results   ->  sections, curves        what the page says and draws, as page_parts
    sections  ->  page, svg               one HTML file
"""
