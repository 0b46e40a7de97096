//! One instance: operations handed to the device, and its answers.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::slice;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use thiserror::Error;
use zeroize::{Zeroize as _, Zeroizing};

use crate::abi::{
    CPA_STATUS_RETRY, CPA_STATUS_SUCCESS, CpaCyRsaDecryptOpData, CpaCyRsaPrivateKey, CpaFlatBuffer, CpaInstanceHandle,
    CpaStatus, REPRESENTATION_2, TWO_PRIMES,
};
use crate::library::Library;

/// Most operations that an instance has at once, those included that nobody waits for any more. QATlib's own rings for
/// RSA have 64 places by default.
pub const MAX_IN_FLIGHT: usize = 64;

/// The longest prime in bytes, half of the longest modulus.
const LONGEST_PRIME: usize = 256;

/// What a slot's memory holds: five numbers of a key, an input, an output.
const BLOCK: usize = 5 * LONGEST_PRIME + 2 * (2 * LONGEST_PRIME);

/// Where devices like numbers to begin.
const ALIGNMENT: usize = 64;

/// The numbers of a key as the device reads them. Wiped when dropped.
pub struct PrivateKey {
    /// p, q, d modulo p − 1, d modulo q − 1 and q⁻¹ modulo p, each as long as a prime.
    numbers: Zeroizing<Vec<u8>>,
    prime: usize,
}

/// Why an operation was not begun.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// [`MAX_IN_FLIGHT`] operations are under way, or the device's ring is full.
    #[error("the instance is busy")]
    Busy,
    /// No memory that the device can read.
    #[error("no memory that the device can read")]
    Memory,
    /// The input is not as long as the modulus.
    #[error("the input is not as long as the modulus")]
    Length,
    /// The library's `CpaStatus`.
    #[error("cpaCyRsaDecrypt returned {0}")]
    Status(i32),
}

/// The device has answered that it could not do an operation.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the device answered with status {0}")]
pub struct Failure(
    /// The `CpaStatus`.
    pub i32,
);

/// Takes an operation's result, as long as the modulus and not verified. Called by the thread that polls, which may be
/// another worker's, so it should only pass the result on; it must not ask an instance for anything, nor panic.
pub type Answer = Box<dyn FnOnce(Result<Vec<u8>, Failure>) + Send>;

/// A device's rings for requests and answers, with memory for what is on its way.
pub struct Instance {
    library: Library,
    handle: CpaInstanceHandle,
    node: u32,
    places: Mutex<Places>,
    /// What each place's request points to. Written only by who has taken the place, before the device gets it.
    requests: Box<[UnsafeCell<Request>]>,
    /// Held while the instance is polled: the library's function is not reentrant.
    polled: Mutex<()>,
}

// SAFETY: the handle may be used by any thread (QATlib's functions are documented as safe for threads; polling, which is
// not reentrant, has a lock). A request is touched only by who took its place from the locked table, and by the device.
unsafe impl Send for Instance {}
// SAFETY: as above.
unsafe impl Sync for Instance {}

struct Places {
    /// The memory of each place, once it has some, and who waits for its answer.
    all: Vec<Place>,
    free: Vec<usize>,
}

struct Place {
    /// [`BLOCK`] bytes of the library's memory, kept for the next operation; none before the first.
    block: Option<Block>,
    /// Bytes of the modulus that the operation is done by.
    modulus: usize,
    waiting: Option<Answer>,
}

/// Memory that the device reads and writes.
#[derive(Clone, Copy)]
struct Block(*mut u8);

// SAFETY: an address, used by who has taken the place that it belongs to.
unsafe impl Send for Block {}

/// What the device is told of one operation.
struct Request {
    key: CpaCyRsaPrivateKey,
    operation: CpaCyRsaDecryptOpData,
    output: CpaFlatBuffer,
}

impl PrivateKey {
    /// Takes p, q, d modulo p − 1, d modulo q − 1 and q⁻¹ modulo p, big-endian, with or without leading zeros, of a key whose
    /// primes have `prime` bytes each. None when one of them is longer, or primes are longer than 256 bytes. Whether they
    /// belong together is the caller's to check.
    pub fn new(prime: usize, numbers: [&[u8]; 5]) -> Option<Self> {
        if prime == 0 || prime > LONGEST_PRIME {
            return None;
        }
        let mut all = Zeroizing::new(vec![0; 5 * prime]);
        for (place, number) in all.chunks_exact_mut(prime).zip(numbers) {
            let zeros = number.iter().take_while(|byte| **byte == 0).count();
            let number = &number[zeros..];
            let start = prime.checked_sub(number.len())?;
            place[start..].copy_from_slice(number);
        }
        Some(Self { numbers: all, prime })
    }

    /// Bytes of the modulus, of an input and of a result.
    pub fn modulus(&self) -> usize {
        2 * self.prime
    }
}

impl Block {
    /// # Safety
    /// The place that it belongs to must be the caller's.
    unsafe fn bytes<'a>(self) -> &'a mut [u8] {
        // SAFETY: as long as it was allocated, and initialised then; nobody else has it, says the caller.
        unsafe { slice::from_raw_parts_mut(self.0, BLOCK) }
    }
}

impl Request {
    const fn empty() -> Self {
        let nothing = CpaFlatBuffer {
            data_len_in_bytes: 0,
            data: null_mut(),
        };
        Self {
            key: CpaCyRsaPrivateKey {
                version: TWO_PRIMES,
                representation: REPRESENTATION_2,
                representation1: [nothing; 2],
                representation2: [nothing; 5],
            },
            operation: CpaCyRsaDecryptOpData {
                key: null_mut(),
                input: nothing,
            },
            output: nothing,
        }
    }
}

impl Instance {
    pub(crate) fn new(library: Library, handle: CpaInstanceHandle, node: u32) -> Self {
        let place = || Place {
            block: None,
            modulus: 0,
            waiting: None,
        };
        Self {
            library,
            handle,
            node,
            places: Mutex::new(Places {
                all: (0..MAX_IN_FLIGHT).map(|_| place()).collect(),
                free: (0..MAX_IN_FLIGHT).rev().collect(),
            }),
            requests: (0..MAX_IN_FLIGHT).map(|_| UnsafeCell::new(Request::empty())).collect(),
            polled: Mutex::new(()),
        }
    }

    /// Begins one operation: `input`, below the modulus and as long, is raised to the private exponent. `answer` is called
    /// once, when a [poll](Instance::poll) finds the result; never when this is refused, or when the device never answers.
    ///
    /// # Errors
    /// [`Refused`]; nothing has begun then.
    pub fn begin(&'static self, key: &PrivateKey, input: &[u8], answer: Answer) -> Result<(), Refused> {
        if input.len() != key.modulus() {
            return Err(Refused::Length);
        }
        let (index, block) = self.take()?;
        let request = self.requests[index].get();
        // SAFETY: the place was taken from the locked table, so nobody else has its block, the device neither.
        let bytes = unsafe { block.bytes() };
        let (prime, modulus) = (key.prime, key.modulus());
        bytes[..5 * prime].copy_from_slice(&key.numbers);
        bytes[5 * prime..][..modulus].copy_from_slice(input);
        let part = |start: usize, length: usize| CpaFlatBuffer {
            data_len_in_bytes: length as u32,
            data: block.0.wrapping_add(start),
        };
        // SAFETY: as above, for the request. Nothing that it points to moves or is freed: blocks are kept, and the requests
        // are the instance's, which lives as long as the process.
        unsafe {
            (*request).key.representation2 = std::array::from_fn(|i| part(i * prime, prime));
            (*request).operation.key = &raw mut (*request).key;
            (*request).operation.input = part(5 * prime, modulus);
            (*request).output = part(5 * prime + modulus, modulus);
        }
        // Before the device has it: an answer may come at once.
        {
            let place = &mut self.places().all[index];
            place.modulus = modulus;
            place.waiting = Some(answer);
        }
        // SAFETY: the handle is started; the request is filled, and its owner is the library now until it calls back. The
        // tag is this instance, which lives as long as the process.
        let status = unsafe {
            (self.library.rsa_decrypt)(
                self.handle,
                answered,
                (&raw const *self).cast_mut().cast::<c_void>(),
                &raw const (*request).operation,
                &raw mut (*request).output,
            )
        };
        if status == CPA_STATUS_SUCCESS {
            return Ok(());
        }
        // It was not taken, so that nobody will call back.
        if self.places().all[index].waiting.take().is_some() {
            // SAFETY: the place is the caller's still.
            unsafe { block.bytes() }.zeroize();
            self.places().free.push(index);
        }
        Err(match status {
            CPA_STATUS_RETRY => Refused::Busy,
            status => Refused::Status(status),
        })
    }

    /// Takes what the device has answered and passes it on. When another thread is doing so, nothing is done.
    ///
    /// # Errors
    /// The library's `CpaStatus` when it cannot look.
    pub fn poll(&self) -> Result<(), Failure> {
        let _alone = match self.polled.try_lock() {
            Ok(alone) => alone,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        // SAFETY: the handle is started. What calls back is `answered`.
        match unsafe { (self.library.poll_instance)(self.handle, 0) } {
            CPA_STATUS_SUCCESS | CPA_STATUS_RETRY => Ok(()),
            status => Err(Failure(status)),
        }
    }

    /// Operations that the device has not answered.
    pub fn in_flight(&self) -> usize {
        MAX_IN_FLIGHT - self.places().free.len()
    }

    /// A place that nobody has, with memory.
    fn take(&self) -> Result<(usize, Block), Refused> {
        let mut places = self.places();
        let index = places.free.pop().ok_or(Refused::Busy)?;
        if let Some(block) = places.all[index].block {
            return Ok((index, block));
        }
        // SAFETY: numbers only.
        let memory = unsafe { (self.library.mem_alloc)(BLOCK, self.node as i32, ALIGNMENT) }.cast::<u8>();
        if memory.is_null() {
            places.free.push(index);
            return Err(Refused::Memory);
        }
        // SAFETY: so many bytes were asked for, and given; nobody else has them.
        unsafe { memory.write_bytes(0, BLOCK) };
        let block = Block(memory);
        places.all[index].block = Some(block);
        Ok((index, block))
    }

    /// The device has done with a request. Anything else that the library may say is ignored.
    fn settle(&self, status: CpaStatus, operation: *const c_void) {
        let index = self.requests.iter().position(|request| {
            let request = request.get();
            // SAFETY: only the field's address is taken.
            unsafe { (&raw const (*request).operation).cast::<c_void>() == operation }
        });
        let Some(index) = index else { return };
        let (answer, block, modulus) = {
            let place = &mut self.places().all[index];
            let (Some(answer), Some(block)) = (place.waiting.take(), place.block) else {
                return;
            };
            (answer, block, place.modulus)
        };
        // SAFETY: with the answer, the place is this function's until it is freed below.
        let bytes = unsafe { block.bytes() };
        // Where `begin` has it written: after five numbers as long as a prime, and an input.
        let start = 5 * (modulus / 2) + modulus;
        let result = match status {
            CPA_STATUS_SUCCESS => Ok(bytes[start..start + modulus].to_vec()),
            status => Err(Failure(status)),
        };
        bytes.zeroize();
        self.places().free.push(index);
        answer(result);
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Called by the library for each answer, while it is polled.
///
/// # Safety
/// The tag must be one that [`Instance::begin`] gave.
unsafe extern "C" fn answered(
    tag: *mut c_void,
    status: CpaStatus,
    operation: *mut c_void,
    _output: *mut CpaFlatBuffer,
) {
    // SAFETY: an instance, which lives as long as the process, says the caller.
    let instance = unsafe { &*tag.cast::<Instance>() };
    instance.settle(status, operation);
}
