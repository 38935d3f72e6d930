// Cells of operations in v1model's registers, for those of a port and those of a source alike.

// The operation's cell in the window of `index`. 16 buckets of a step, one after the other, have a cell each; an operation of
// another step may have one of these cells, too, which the newer one takes then.
bit<32> cell_of(in bit<16> index, in bit<32> step, in bit<16> bucket) {
    return ((bit<32>)index << WINDOW_BITS) + (bit<32>)(step[3:0] ^ bucket[3:0]);
}

// Whether an operation takes the cell of another: of another membership (job and epoch) always, else of one before
// it. What comes late of an older operation is not counted any more; one older than a window of steps is not late,
// its job has begun anew.
bool takes_over(in bit<32> membership, in bit<48> operation, in bit<32> held_membership, in bit<48> held) {
    bit<48> behind = held - operation;
    return membership != held_membership || behind >= 48w1 << (16 + WINDOW_BITS);
}
