//! Descriptors whose types are their states.
//!
//! A [`Draft`] is set and then finalized, which takes it and gives a [`Finalized`]. Only that can be read, or be part
//! of another descriptor, and an attribute says of which kind. libcudnn dereferences descriptors that aren't finalized,
//! operations that were given a tensor's place, and destroyed ones; none of these can be written here. What else it
//! needs set before it may be finalized is an argument of the functions in [`crate::lower`] and [`crate::engine`].

use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::library::{CudnnError, Library, Raw};
use crate::names::{Attribute, Choice, Kind, Kinds, types};

/// A descriptor that is being set.
pub(crate) struct Draft<K> {
    raw: Raw,
    kind: PhantomData<K>,
}

/// A descriptor that was finalized, which nothing changes any more.
#[derive(Debug)]
pub struct Finalized<K> {
    raw: Raw,
    kind: PhantomData<K>,
}

impl<K: Kinds> Draft<K> {
    /// Creates a descriptor without attributes.
    pub(crate) fn new(library: &Arc<Library>, kind: Kind<K>) -> Result<Draft<K>, CudnnError> {
        Ok(Draft { raw: Raw::new(library, kind.code, kind.name)?, kind: PhantomData })
    }

    /// Sets an attribute to a list of plain numbers.
    fn plain<T: Copy, A: ?Sized>(
        mut self,
        attribute: Attribute<A>,
        kind: i32,
        elements: &[T],
    ) -> Result<Self, CudnnError> {
        let name = (attribute.code, attribute.name);
        // SAFETY: callers give elements of the C type that `kind` is the number of.
        unsafe { self.raw.set(name, kind, elements.len(), elements.as_ptr().cast::<c_void>())? };
        Ok(self)
    }

    pub(crate) fn ints(
        self,
        attribute: Attribute<i64>,
        values: &[i64],
    ) -> Result<Self, CudnnError> {
        self.plain(attribute, types::INT64, values)
    }

    pub(crate) fn int(self, attribute: Attribute<i64>, value: i64) -> Result<Self, CudnnError> {
        self.ints(attribute, &[value])
    }

    /// Sets an attribute that takes integers or fractions to fractions.
    pub(crate) fn fractions(
        self,
        attribute: Attribute<i64>,
        values: &[[i64; 2]],
    ) -> Result<Self, CudnnError> {
        self.plain(attribute, types::FRACTION, values)
    }

    pub(crate) fn int32(self, attribute: Attribute<i32>, value: i32) -> Result<Self, CudnnError> {
        self.plain(attribute, types::INT32, &[value])
    }

    pub(crate) fn float(self, attribute: Attribute<f32>, value: f32) -> Result<Self, CudnnError> {
        self.plain(attribute, types::FLOAT, &[value])
    }

    /// Sets an attribute that takes a float of either width to a double.
    pub(crate) fn double<T>(self, attribute: Attribute<T>, value: f64) -> Result<Self, CudnnError> {
        self.plain(attribute, types::DOUBLE, &[value])
    }

    pub(crate) fn flag(self, attribute: Attribute<bool>, value: bool) -> Result<Self, CudnnError> {
        self.plain(attribute, types::BOOLEAN, &[value])
    }

    /// Sets an attribute to a value of an enum.
    pub(crate) fn choice(
        self,
        attribute: Attribute<Choice>,
        value: i32,
    ) -> Result<Self, CudnnError> {
        let kind = attribute.choice;
        self.plain(attribute, kind, &[value])
    }

    pub(crate) fn text(self, attribute: Attribute<str>, value: &str) -> Result<Self, CudnnError> {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.plain(attribute, types::CHAR, &bytes)
    }

    /// Sets an attribute to a finalized descriptor of its kind.
    pub(crate) fn descriptor<D>(
        self,
        attribute: Attribute<Finalized<D>>,
        value: &Finalized<D>,
    ) -> Result<Self, CudnnError> {
        self.plain(attribute, types::BACKEND_DESCRIPTOR, &[value.raw.pointer()])
    }

    /// Sets an attribute to a list of finalized descriptors of its kind.
    pub(crate) fn descriptors<D>(
        self,
        attribute: Attribute<Finalized<D>>,
        values: &[&Finalized<D>],
    ) -> Result<Self, CudnnError> {
        let pointers: Vec<*mut c_void> = values.iter().map(|value| value.raw.pointer()).collect();
        self.plain(attribute, types::BACKEND_DESCRIPTOR, &pointers)
    }

    /// Sets an attribute to a handle of cuDNN's.
    pub(crate) fn handle(
        self,
        attribute: Attribute<crate::library::Handle>,
        handle: &crate::library::Handle,
    ) -> Result<Self, CudnnError> {
        self.plain(attribute, types::HANDLE, &[handle.pointer()])
    }

    /// Sets an attribute to addresses, which libcudnn doesn't dereference here.
    pub(crate) fn addresses(
        self,
        attribute: Attribute<*mut c_void>,
        values: &[*mut c_void],
    ) -> Result<Self, CudnnError> {
        self.plain(attribute, types::VOID_PTR, values)
    }

    /// Finalizes it.
    pub(crate) fn finalize(mut self) -> Result<Finalized<K>, CudnnError> {
        self.raw.finalize()?;
        Ok(Finalized { raw: self.raw, kind: PhantomData })
    }
}

impl<K> Finalized<K> {
    pub(crate) fn raw(&self) -> &Raw {
        &self.raw
    }

    pub(crate) fn library(&self) -> &Arc<Library> {
        self.raw.library()
    }

    /// Reads at most `count` plain numbers, `empty` ones before they are filled.
    fn plain<T: Copy, A: ?Sized>(
        &self,
        attribute: Attribute<A>,
        kind: i32,
        count: usize,
        empty: T,
    ) -> Result<Vec<T>, CudnnError> {
        let mut values = vec![empty; count.max(1)];
        let name = (attribute.code, attribute.name);
        // SAFETY: there is room for `count` values of the C type that callers give the number of.
        let found =
            unsafe { self.raw.get(name, kind, count, values.as_mut_ptr().cast::<c_void>())? };
        values.truncate(found.min(count));
        Ok(values)
    }

    /// Returns how many elements an attribute has.
    fn count<A: ?Sized>(&self, attribute: Attribute<A>, kind: i32) -> Result<usize, CudnnError> {
        let name = (attribute.code, attribute.name);
        // SAFETY: nothing is written where no element is asked for.
        unsafe { self.raw.get(name, kind, 0, std::ptr::null_mut()) }
    }

    /// Reads one integer; 0 where there is none.
    pub(crate) fn read_int(&self, attribute: Attribute<i64>) -> Result<i64, CudnnError> {
        Ok(self.plain(attribute, types::INT64, 1, 0_i64)?.first().copied().unwrap_or(0))
    }

    /// Reads values of an enum, as integers.
    pub(crate) fn read_choices(
        &self,
        attribute: Attribute<Choice>,
        count: usize,
    ) -> Result<Vec<i32>, CudnnError> {
        let kind = attribute.choice;
        self.plain(attribute, kind, count, 0_i32)
    }

    /// Reads a text.
    pub(crate) fn read_text(&self, attribute: Attribute<str>) -> Result<String, CudnnError> {
        let count = self.count(attribute, types::CHAR)?;
        let mut bytes = self.plain(attribute, types::CHAR, count, 0_u8)?;
        if let Some(end) = bytes.iter().position(|&byte| byte == 0) {
            bytes.truncate(end);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Reads at most `limit` descriptors, all for `None`; libcudnn fills them in finalized.
    pub(crate) fn read_descriptors<D: Kinds>(
        &self,
        attribute: Attribute<Finalized<D>>,
        kind: Kind<D>,
        limit: Option<usize>,
    ) -> Result<Vec<Finalized<D>>, CudnnError> {
        let count = match limit {
            Some(limit) => limit,
            None => self.count(attribute, types::BACKEND_DESCRIPTOR)?,
        };
        let made = (0..count).map(|_| Raw::new(self.library(), kind.code, kind.name));
        let mut made: Vec<Raw> = made.collect::<Result<_, _>>()?;
        let mut pointers: Vec<*mut c_void> = made.iter().map(Raw::pointer).collect();
        pointers.push(std::ptr::null_mut());
        let name = (attribute.code, attribute.name);
        // SAFETY: there are `count` descriptors of the attribute's kind.
        let found = unsafe {
            let first = pointers.as_mut_ptr().cast::<c_void>();
            self.raw.get(name, types::BACKEND_DESCRIPTOR, count, first)?
        };
        made.truncate(found.min(count));
        Ok(made.into_iter().map(|raw| Finalized { raw, kind: PhantomData }).collect())
    }
}
