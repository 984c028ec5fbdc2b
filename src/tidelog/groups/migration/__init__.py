"""Groups that move between the classic protocol and KIP-848, while their members go on."""
