// Empty: the words of the paper are not ours to copy. `annotated paper --site`
// puts your own copy of them here, for the cards of these pages (page E28).
