"""What each vendor's tool prints, read device by device. One module per tool; `domain.probing` picks among them."""
