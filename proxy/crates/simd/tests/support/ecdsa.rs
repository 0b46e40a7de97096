//! ECDSA keys of BoringSSL, which verifies what the kernels sign.

use boring::bn::{BigNum, BigNumContext, BigNumRef};
use boring::ec::{EcGroup, EcKey, EcPoint};
use boring::ecdsa::EcdsaSig;
use boring::nid::Nid;
use boring::pkey::Private;
use heddle_simd::P256PrivateKey;

/// One key in both forms.
pub(crate) struct Pair {
    pub(crate) boring: EcKey<Private>,
    pub(crate) key: P256PrivateKey,
}

fn group() -> EcGroup {
    EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).expect("P-256")
}

impl Pair {
    pub(crate) fn generate() -> Self {
        let boring = EcKey::generate(&group()).expect("key");
        let key = P256PrivateKey::new(&boring.private_key().to_vec()).expect("a good key");
        Self { boring, key }
    }

    /// The key with this scalar.
    pub(crate) fn of(scalar: &[u8; 32]) -> Self {
        let group = group();
        let number = BigNum::from_slice(scalar).expect("number");
        let mut point = EcPoint::new(&group).expect("point");
        let mut context = BigNumContext::new().expect("context");
        point.mul_generator(&group, &number, &mut context).expect("multiple");
        let boring = EcKey::from_private_components(&group, &number, &point).expect("key");
        let key = P256PrivateKey::new(scalar).expect("a good key");
        Self { boring, key }
    }

    pub(crate) fn verifies(&self, digest: &[u8; 32], signature: &[u8; 64]) -> bool {
        let part = |bytes| BigNum::from_slice(bytes).expect("number");
        let (r, s) = signature.split_at(32);
        let signature = EcdsaSig::from_private_components(part(r), part(s)).expect("signature");
        // BoringSSL has an error for some bad signatures.
        signature.verify(digest, &self.boring).unwrap_or(false)
    }
}

fn padded(number: &BigNumRef) -> [u8; 32] {
    number.to_vec_padded(32).expect("fits").try_into().expect("32 bytes")
}

pub(crate) fn number(number: u8) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[31] = number;
    bytes
}

/// n.
pub(crate) fn order() -> [u8; 32] {
    order_less(0)
}

/// n − `less`.
pub(crate) fn order_less(less: u32) -> [u8; 32] {
    let mut order = BigNum::new().expect("number");
    let mut context = BigNumContext::new().expect("context");
    group().order(&mut order, &mut context).expect("order");
    order.sub_word(less).expect("difference");
    padded(&order)
}
