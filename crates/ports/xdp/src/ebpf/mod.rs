//! The filter that decides which frames are the gateway's: [`program`] is its program, and [`filter`] is it
//! at an interface.

pub(crate) mod filter;
pub(crate) mod program;
