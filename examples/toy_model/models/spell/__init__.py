"""A byte model of one recurrent layer."""
