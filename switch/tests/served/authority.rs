//! An authority that signs certificates for tests of TLS.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// A certificate authority.
pub struct Authority {
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Authority {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("a certificate").pem();
        let issuer = Issuer::new(params, key);
        Authority { pem, issuer }
    }

    /// A certificate for `localhost` and 127.0.0.1, and its key, in PEM format.
    pub fn sign(&self) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let names = ["localhost", "127.0.0.1"];
        let params = CertificateParams::new(names.map(String::from)).expect("names");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        (certificate.pem(), key.serialize_pem())
    }
}
