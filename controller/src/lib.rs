//! Ultima's controller: fabric, jobs, groups and rules over P4Runtime
