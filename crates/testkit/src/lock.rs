use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, also after a panic: the test or task that panicked has already failed, and others must continue.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
