//! Moves many buffers at once: one copy of their descriptors, where moving each by itself takes some 30
//! instructions.

#![allow(
    unsafe_code,
    reason = "the safe way, extending one list with what is drained from another, moves values one by one"
)]

use crate::{Batch, Buffer};

/// Moves the last `count` buffers of `from` to the end of `to`, in order; fewer if `from` has fewer or `to`
/// has no room. Returns how many.
#[inline]
pub(crate) fn last_to_batch(from: &mut Vec<Buffer>, count: usize, to: &mut Batch) -> usize {
    let count = count.min(from.len()).min(to.remaining_capacity());
    let (left, had) = (from.len() - count, to.len());
    // SAFETY: `left + count` is the length of `from`, whose elements are therefore initialised, and `had +
    // count` is at most the capacity of `to`; both are borrowed exclusively, so they do not overlap. `from`
    // is shortened before `to` grows: no buffer is ever owned twice, and nothing in between can panic.
    unsafe {
        from.set_len(left);
        std::ptr::copy_nonoverlapping(from.as_ptr().add(left), to.as_mut_ptr().add(had), count);
        to.set_len(had + count);
    }
    count
}

/// Moves all of `from` to the end of `to`.
#[inline]
pub(crate) fn all_to_list(from: &mut Batch, to: &mut Vec<Buffer>) {
    let (count, had) = (from.len(), to.len());
    to.reserve(count);
    // SAFETY: the first `count` elements of `from` are initialised, and `to` has room for `count` more after
    // its own, reserved above; both are borrowed exclusively, so they do not overlap. `from` is emptied
    // before `to` grows.
    unsafe {
        from.set_len(0);
        std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr().add(had), count);
        to.set_len(had + count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BATCH_SIZE;

    fn numbered(number: usize) -> Buffer {
        Buffer::copied(&number.to_be_bytes(), 0, 0)
    }

    fn numbers<'a>(buffers: impl IntoIterator<Item = &'a Buffer>) -> Vec<usize> {
        buffers.into_iter().map(|b| usize::from_be_bytes(b.bytes().try_into().unwrap())).collect()
    }

    #[test]
    fn buffers_keep_their_order_and_none_is_duplicated() {
        let mut list: Vec<Buffer> = (0..5).map(numbered).collect();
        let mut batch: Batch = (10..12).map(numbered).collect();
        assert_eq!(last_to_batch(&mut list, 2, &mut batch), 2);
        assert_eq!((numbers(&list), numbers(&batch)), (vec![0, 1, 2], vec![10, 11, 3, 4]));
        all_to_list(&mut batch, &mut list);
        assert_eq!((numbers(&list), batch.len()), (vec![0, 1, 2, 10, 11, 3, 4], 0));
        all_to_list(&mut batch, &mut list);
        assert_eq!(list.len(), 7);
    }

    #[test]
    fn no_more_are_moved_than_exist_and_fit() {
        let mut list: Vec<Buffer> = (0..BATCH_SIZE + 9).map(numbered).collect();
        let mut batch: Batch = (0..4).map(numbered).collect();
        assert_eq!(last_to_batch(&mut list, usize::MAX, &mut batch), BATCH_SIZE - 4);
        assert_eq!((list.len(), batch.len()), (13, BATCH_SIZE));
        assert_eq!(last_to_batch(&mut list, 1, &mut batch), 0);
        let mut other = Batch::new();
        assert_eq!(last_to_batch(&mut list, 20, &mut other), 13);
        assert_eq!(last_to_batch(&mut list, 20, &mut other), 0);
        assert_eq!(numbers(&other), (0..13).collect::<Vec<_>>());
    }
}
