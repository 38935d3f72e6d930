//! Ultima's collective: protocol core without I/O, Hadamard codec, I/O drivers
