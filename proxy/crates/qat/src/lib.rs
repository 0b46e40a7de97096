//! Private RSA operations on Intel's QuickAssist devices (QAT), through the C interface of QATlib, which is loaded when a
//! configuration first asks for it: a machine needs neither a device nor the library otherwise.
//!
//! All of the proxy's `unsafe` code for it is here. What comes out is not verified: who asks must hold a result against the
//! public key before it leaves the process.
//!
//! The interface is that of QATlib's headers (`cpa.h`, `lac/cpa_cy_rsa.h`, `lac/cpa_cy_im.h`, `icp_sal_poll.h`,
//! `icp_sal_user.h`, `qae_mem.h`), read of release 26.08, whose library is `libqat.so.4`. No such device has been tried: the
//! tests use a library of ours with the same interface.

mod abi;
mod device;
mod instance;
mod library;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(test)]
mod tests;

pub use device::{Device, Unavailable};
pub use instance::{Answer, Failure, Instance, MAX_IN_FLIGHT, PrivateKey, Refused};
