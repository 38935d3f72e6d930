//! Ultima's P4 programs as p4c compiled them, their names and their manifest
