//! Code generated from `proto/`. The module tree mirrors the packages, because generated code uses relative paths.

#![allow(
    // Generated code uses the deprecated fields it declares.
    deprecated,
    // Oneofs, and what tonic generates, carry no comment from the proto files.
    missing_docs,
    // An entity is as large as its largest alternative, a table entry: the usual one.
    clippy::large_enum_variant
)]

pub mod google {
    pub mod rpc {
        //! `google.rpc`: the status with details that failed calls carry.
        include!(concat!(env!("OUT_DIR"), "/google.rpc.rs"));
    }
}

pub mod p4 {
    pub mod v1 {
        //! `p4.v1`: P4Runtime's messages and stubs.
        include!(concat!(env!("OUT_DIR"), "/p4.v1.rs"));
    }

    pub mod config {
        //! `p4.config`: the program as the control plane sees it.
        pub mod v1 {
            //! `p4.config.v1`: P4Info and the P4 types it refers to.
            include!(concat!(env!("OUT_DIR"), "/p4.config.v1.rs"));
        }
    }
}

pub mod stratum {
    pub mod hal {
        //! `stratum.hal`: Stratum's configuration of a switch's ports.
        include!(concat!(env!("OUT_DIR"), "/stratum.hal.rs"));

        pub mod barefoot {
            //! `stratum.hal.barefoot`: a program for Tofino.
            include!(concat!(env!("OUT_DIR"), "/stratum.hal.barefoot.rs"));
        }
    }
}
