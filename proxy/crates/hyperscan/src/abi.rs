//! Types of the C interface, under the names of its headers where they have one.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

/// `hs_error_t`.
pub(crate) type Error = c_int;
pub(crate) const HS_SUCCESS: Error = 0;
pub(crate) const HS_NOMEM: Error = -2;
/// The callback asked for the end of the scan.
pub(crate) const HS_SCAN_TERMINATED: Error = -3;

pub(crate) const HS_FLAG_DOTALL: c_uint = 2;
pub(crate) const HS_FLAG_SINGLEMATCH: c_uint = 8;
pub(crate) const HS_FLAG_ALLOWEMPTY: c_uint = 16;
pub(crate) const HS_FLAG_UTF8: c_uint = 32;
pub(crate) const HS_MODE_BLOCK: c_uint = 1;

/// `hs_database_t`, which only the library looks into.
#[repr(C)]
pub(crate) struct RawDatabase {
    _opaque: [u8; 0],
}

/// `hs_scratch_t`, which only the library looks into.
#[repr(C)]
pub(crate) struct RawScratch {
    _opaque: [u8; 0],
}

/// `hs_compile_error_t`.
#[repr(C)]
pub(crate) struct CompileError {
    pub(crate) message: *mut c_char,
    /// The place of the expression, or negative.
    pub(crate) expression: c_int,
}

/// `match_event_handler`: id, begin, end, flags, context. Anything but zero ends the scan.
pub(crate) type OnMatch = unsafe extern "C" fn(c_uint, c_ulonglong, c_ulonglong, c_uint, *mut c_void) -> c_int;

pub(crate) type Version = unsafe extern "C" fn() -> *const c_char;
pub(crate) type ValidPlatform = unsafe extern "C" fn() -> Error;
/// `hs_compile_multi`: expressions, flags, ids, their number, mode, platform (null is this one), database, error.
pub(crate) type CompileMulti = unsafe extern "C" fn(
    *const *const c_char,
    *const c_uint,
    *const c_uint,
    c_uint,
    c_uint,
    *const c_void,
    *mut *mut RawDatabase,
    *mut *mut CompileError,
) -> Error;
pub(crate) type FreeCompileError = unsafe extern "C" fn(*mut CompileError) -> Error;
pub(crate) type DatabaseSize = unsafe extern "C" fn(*const RawDatabase, *mut usize) -> Error;
pub(crate) type FreeDatabase = unsafe extern "C" fn(*mut RawDatabase) -> Error;
pub(crate) type AllocScratch = unsafe extern "C" fn(*const RawDatabase, *mut *mut RawScratch) -> Error;
pub(crate) type CloneScratch = unsafe extern "C" fn(*const RawScratch, *mut *mut RawScratch) -> Error;
pub(crate) type ScratchSize = unsafe extern "C" fn(*const RawScratch, *mut usize) -> Error;
pub(crate) type FreeScratch = unsafe extern "C" fn(*mut RawScratch) -> Error;
/// `hs_scan`: database, text, its length, flags (none), scratch, callback, context.
pub(crate) type Scan = unsafe extern "C" fn(
    *const RawDatabase,
    *const c_char,
    c_uint,
    c_uint,
    *mut RawScratch,
    OnMatch,
    *mut c_void,
) -> Error;
