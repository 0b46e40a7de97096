//! Types of QATlib's C interface that operations need, under the names of its headers.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `CpaStatus`.
pub(crate) type CpaStatus = i32;
pub(crate) const CPA_STATUS_SUCCESS: CpaStatus = 0;
/// A full ring when something is submitted; nothing to be had when it is polled.
pub(crate) const CPA_STATUS_RETRY: CpaStatus = -2;

/// `CPA_CY_RSA_VERSION_TWO_PRIME`.
pub(crate) const TWO_PRIMES: c_uint = 1;
/// `CPA_CY_RSA_PRIVATE_KEY_REP_TYPE_2`: primes, their exponents and the coefficient (RFC 8017 §3.2, second form).
pub(crate) const REPRESENTATION_2: c_uint = 2;
/// `CPA_OPER_STATE_UP`.
pub(crate) const STATE_UP: c_uint = 1;

/// An instance: a device's queue for requests and one for answers.
pub(crate) type CpaInstanceHandle = *mut c_void;

/// A number, big-endian.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CpaFlatBuffer {
    pub(crate) data_len_in_bytes: u32,
    pub(crate) data: *mut u8,
}

/// The first representation stays empty.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CpaCyRsaPrivateKey {
    pub(crate) version: c_uint,
    pub(crate) representation: c_uint,
    /// n, d.
    pub(crate) representation1: [CpaFlatBuffer; 2],
    /// p, q, d modulo p − 1, d modulo q − 1, q⁻¹ modulo p.
    pub(crate) representation2: [CpaFlatBuffer; 5],
}

/// One operation: a decryption and a signature are the same.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CpaCyRsaDecryptOpData {
    pub(crate) key: *mut CpaCyRsaPrivateKey,
    pub(crate) input: CpaFlatBuffer,
}

/// `CpaCyCapabilitiesInfo`, a row of truth values; some are in reserve for those that later releases add.
#[repr(C)]
pub(crate) struct CpaCyCapabilitiesInfo {
    pub(crate) supported: [c_uint; 64],
}

/// Place of `rsaSupported` in [`CpaCyCapabilitiesInfo`].
pub(crate) const RSA_SUPPORTED: usize = 4;

/// `CpaInstanceInfo2`, with some bytes in reserve.
#[repr(C)]
pub(crate) struct CpaInstanceInfo2 {
    pub(crate) service: c_uint,
    pub(crate) vendor_name: [u8; 64],
    pub(crate) part_name: [u8; 64],
    pub(crate) software_version: [u8; 64],
    pub(crate) name: [u8; 64],
    pub(crate) id: [u8; 128],
    /// Package, accelerator, engine and bus.
    pub(crate) physical: [u16; 4],
    pub(crate) kpt_handle: u32,
    pub(crate) core_affinity: [u32; 4096 / 32],
    pub(crate) node_affinity: u32,
    pub(crate) state: c_uint,
    pub(crate) requires_contiguous_memory: c_uint,
    pub(crate) is_polled: c_uint,
    pub(crate) is_offloaded: c_uint,
    pub(crate) reserve: [u8; 256],
}

/// `CpaCyGenFlatBufCbFunc`: tag, status, the operation, its output.
pub(crate) type Callback = unsafe extern "C" fn(*mut c_void, CpaStatus, *mut c_void, *mut CpaFlatBuffer);
/// `CpaVirtualToPhysical`.
pub(crate) type VirtualToPhysical = unsafe extern "C" fn(*mut c_void) -> u64;

pub(crate) type UserStart = unsafe extern "C" fn(*const c_char) -> CpaStatus;
pub(crate) type GetNumInstances = unsafe extern "C" fn(*mut u16) -> CpaStatus;
pub(crate) type GetInstances = unsafe extern "C" fn(u16, *mut CpaInstanceHandle) -> CpaStatus;
pub(crate) type InstanceGetInfo2 = unsafe extern "C" fn(CpaInstanceHandle, *mut CpaInstanceInfo2) -> CpaStatus;
pub(crate) type QueryCapabilities = unsafe extern "C" fn(CpaInstanceHandle, *mut CpaCyCapabilitiesInfo) -> CpaStatus;
pub(crate) type SetAddressTranslation = unsafe extern "C" fn(CpaInstanceHandle, VirtualToPhysical) -> CpaStatus;
pub(crate) type StartInstance = unsafe extern "C" fn(CpaInstanceHandle) -> CpaStatus;
pub(crate) type RsaDecrypt = unsafe extern "C" fn(
    CpaInstanceHandle,
    Callback,
    *mut c_void,
    *const CpaCyRsaDecryptOpData,
    *mut CpaFlatBuffer,
) -> CpaStatus;
pub(crate) type PollInstance = unsafe extern "C" fn(CpaInstanceHandle, u32) -> CpaStatus;
/// `qaeMemAllocNUMA`: size, node, alignment.
pub(crate) type MemAlloc = unsafe extern "C" fn(usize, c_int, usize) -> *mut c_void;
