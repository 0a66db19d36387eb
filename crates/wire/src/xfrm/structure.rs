//! Structures of the kernel's interface, each a list of fields with their offsets.
//!
//! [`structure!`] makes a type of such a list, and reads and writes it from the same list, so that the two
//! cannot disagree. Offsets are those of the C structures on 64-bit systems; gaps are the compiler's padding,
//! written as zeros and not read. That all fields are inside is checked when this is compiled.

/// The order of a number's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The host's.
    Host,
    /// Big endian, as in packets.
    Network,
}

/// Something at a fixed place in a structure.
pub(super) trait Field: Sized {
    const BYTES: usize;
    /// Reads it from exactly as many bytes.
    fn get(bytes: &[u8], order: Order) -> Self;
    /// Writes it to exactly as many bytes.
    fn put(&self, bytes: &mut [u8], order: Order);
}

macro_rules! number {
    ($($number:ty)*) => {$(
        impl Field for $number {
            const BYTES: usize = size_of::<$number>();

            fn get(bytes: &[u8], order: Order) -> Self {
                let mut array = [0; size_of::<$number>()];
                array.copy_from_slice(bytes);
                match order {
                    Order::Host => Self::from_ne_bytes(array),
                    Order::Network => Self::from_be_bytes(array),
                }
            }

            fn put(&self, bytes: &mut [u8], order: Order) {
                bytes.copy_from_slice(&match order {
                    Order::Host => self.to_ne_bytes(),
                    Order::Network => self.to_be_bytes(),
                });
            }
        }
    )*};
}

number!(u8 u16 u32 u64 i32);

/// What a message begins with, or an attribute holds.
pub(super) trait Structure: Sized {
    /// Its bytes in a message, its C padding included.
    const LENGTH: usize;
    /// Reads it from the start of `bytes`; nothing if these are too few.
    fn read_first(bytes: &[u8]) -> Option<Self>;
    /// Appends it.
    fn append(&self, to: &mut Vec<u8>);
}

macro_rules! order {
    () => {
        $crate::xfrm::structure::Order::Host
    };
    (network) => {
        $crate::xfrm::structure::Order::Network
    };
}

/// `structure! { Name, bytes, { field: type = offset, … } }`; `network` after an offset means network order.
macro_rules! structure {
    (
        $(#[$doc:meta])*
        $name:ident, $bytes:literal,
        { $($(#[$field_doc:meta])* $field:ident: $kind:ty = $at:literal $($order:ident)?,)* }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $kind,)*
        }

        impl $name {
            /// Bytes of it in a message, its C padding included.
            pub const BYTES: usize = $bytes;

            /// Reads it.
            #[must_use]
            pub fn read(bytes: &[u8; $bytes]) -> Self {
                use $crate::xfrm::structure::{Field, order};
                Self { $($field: Field::get(&bytes[$at..$at + <$kind as Field>::BYTES], order!($($order)?)),)* }
            }

            /// Its bytes.
            #[must_use]
            pub fn to_bytes(&self) -> [u8; $bytes] {
                use $crate::xfrm::structure::{Field, order};
                let mut bytes = [0; $bytes];
                $(self.$field.put(&mut bytes[$at..$at + <$kind as Field>::BYTES], order!($($order)?));)*
                bytes
            }
        }

        const _: () = {
            use $crate::xfrm::structure::Field;
            let ends = [$($at + <$kind as Field>::BYTES),*];
            let mut at = 0;
            while at < ends.len() {
                assert!(ends[at] <= $bytes, "a field is outside of its structure");
                at += 1;
            }
        };

        impl $crate::xfrm::structure::Field for $name {
            const BYTES: usize = $bytes;

            fn get(bytes: &[u8], _: $crate::xfrm::structure::Order) -> Self {
                let mut array = [0; $bytes];
                array.copy_from_slice(bytes);
                Self::read(&array)
            }

            fn put(&self, bytes: &mut [u8], _: $crate::xfrm::structure::Order) {
                bytes.copy_from_slice(&self.to_bytes());
            }
        }

        impl $crate::xfrm::structure::Structure for $name {
            const LENGTH: usize = $bytes;

            fn read_first(bytes: &[u8]) -> Option<Self> {
                bytes.first_chunk().map(Self::read)
            }

            fn append(&self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_bytes());
            }
        }
    };
}

pub(super) use {order, structure};
