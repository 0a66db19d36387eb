//! Values that different cores write, apart from each other.

/// A value with cache lines of its own: two, since processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Padded<T>(pub(super) T);
