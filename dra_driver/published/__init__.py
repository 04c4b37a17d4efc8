"""What a device looks like from outside: names of attributes and capacities, their values, and the API's limits."""
