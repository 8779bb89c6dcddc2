//! Tests on real file systems: of the library, and of the program.

#[cfg(test)]
mod mounts;
#[cfg(test)]
mod populate;
#[cfg(test)]
mod support;
