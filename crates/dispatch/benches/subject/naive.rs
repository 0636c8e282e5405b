//! The naive design: a hash map from (operator, key) to a boxed closure, scanned from the highest
//! key of the arguments' set.

use std::collections::HashMap;

use keyfold_dispatch::{DispatchKey as K, DispatchKeySet};

use super::noop;
use super::value::Tensor;

type Function = Box<dyn Fn(&Naive, DispatchKeySet, &[&Tensor]) -> i64>;

pub(super) struct Naive {
    kernels: HashMap<(String, K), Function>,
}

impl Naive {
    /// A kernel at CPU, and with `layer` an Autograd layer over it that redispatches.
    pub(super) fn new(layer: bool) -> Naive {
        let mut kernels: HashMap<(String, K), Function> = HashMap::new();
        let name = "bench::noop".to_owned();
        kernels.insert((name.clone(), K::CPU), Box::new(|_, _, args| noop(args[0], args[1])));
        if layer {
            let below: Function = Box::new(|naive, keys, args| {
                naive.redispatch("bench::noop", keys.remove(K::Autograd), args)
            });
            kernels.insert((name, K::Autograd), below);
        }
        Naive { kernels }
    }

    pub(super) fn call(&self, name: &str, args: [&Tensor; 2]) -> i64 {
        self.redispatch(name, args[0].keys() | args[1].keys(), &args)
    }

    fn redispatch(&self, name: &str, keys: DispatchKeySet, args: &[&Tensor]) -> i64 {
        for key in keys {
            // The map's key owns its name, so that every look-up allocates one.
            if let Some(kernel) = self.kernels.get(&(name.to_owned(), key)) {
                return kernel(self, keys, args);
            }
        }
        panic!("no kernel for {name}");
    }

    /// As `call`, with one name allocated for all look-ups.
    pub(super) fn call_thrifty(&self, name: &str, args: [&Tensor; 2]) -> i64 {
        let keys = args[0].keys() | args[1].keys();
        let mut place = (name.to_owned(), K::CPU);
        for key in keys {
            place.1 = key;
            if let Some(kernel) = self.kernels.get(&place) {
                return kernel(self, keys, &args);
            }
        }
        panic!("no kernel for {name}");
    }
}
