"""The Python tests, in folders by what they test."""
