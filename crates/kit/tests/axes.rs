//! Axes, coordinates, spaces, and the choice between several bodies.

use std::sync::Arc;

use keyfold_core::{DType, Device as AnyDevice, ErrorKind};
use keyfold_kit::axes::{
    ALL_DEVICES, At, AxesMap, Axis, AxisValue, Body, COMPLEX, Contiguity, Contiguous, Coords,
    Coverage, Cpu, Cuda, Device, DispatchTable, Dtype, F16, F32, F64, FLOATS, HALVES, Has,
    HasDtype, I32, INTS, ORDERED, Origin, Output, SIGNED_INTS, Scheduling, Space, Strided,
    UNSIGNED_INTS, Uniform, coordinates, one_of, plain,
};
use keyfold_kit::body;
use keyfold_tensor::Tensor;
use proptest::prelude::*;

keyfold_kit::axis! {
    /// An axis declared by a test.
    enum BlockSize("block size") {
        Block128 = "128",
        Block256 = "256",
        Block512 = "512",
    }
}

type Axes3 = (Device, Dtype, Contiguity);
type Text = fn() -> String;

/// The coordinates that a body received, as text.
fn seen<C: HasDtype + Has<Device>>(coords: C) -> String {
    format!("{} {}", coords.value::<Device>().label(), std::any::type_name::<C::Element>())
}

fn table() -> DispatchTable<Axes3, Text> {
    DispatchTable::builder("seen")
        .cover((FLOATS, Cpu), body!(seen() -> Text where HasDtype + Has<Device>))
        .cover((Cuda, F32, Contiguous), body!(seen() -> Text where HasDtype + Has<Device>))
        .build()
        .unwrap()
}

#[test]
fn coordinates_take_no_memory_and_name_types() {
    let coords = Origin.with(Cpu).with(F32).with(Contiguous).with(Uniform).with(Block128);
    assert_eq!(size_of_val(&coords), 0);
    assert_eq!(size_of_val(&coords.get::<Dtype>()), 0);
    fn element<C: HasDtype>(_: C) -> usize {
        size_of::<C::Element>()
    }
    assert_eq!(element(coords), 4);
    let _: F32 = coords.get::<Dtype>();
    let _: Block128 = coords.get::<BlockSize>();
    assert_eq!(coords.value::<Scheduling>(), Scheduling::Uniform);
    const DTYPE: DType = <At<F64, Origin> as Has<Dtype>>::Value::VALUE;
    assert_eq!(DTYPE, DType::F64);
}

#[test]
fn with_replaces_or_adds_and_without_drops() {
    let coords = Origin.with(Cpu).with(F32);
    assert_eq!(coords.entries(), [("device", "cpu"), ("dtype", "float32")]);
    let more = coords.with(Block256);
    assert_eq!(more.value::<BlockSize>(), BlockSize::Block256);
    assert_eq!(more.with(Block512).value::<BlockSize>(), BlockSize::Block512);
    assert_eq!(
        more.with(F64).entries(),
        [("device", "cpu"), ("block size", "256"), ("dtype", "float64")]
    );
    let less = more.with(F64).without::<Dtype>();
    assert_eq!(less.entries(), [("device", "cpu"), ("block size", "256")]);
    assert_eq!(less.without::<Dtype>().entries(), less.entries());
    assert_eq!(format!("{less:?}"), r#"{"device": "cpu", "block size": "256"}"#);
}

#[test]
fn a_generic_body_may_add_a_parameter_and_call_functions_that_need_it() {
    fn inner<C: Has<BlockSize> + Has<Device> + HasDtype>(coords: C) -> String {
        format!("{:?}", coords.entries())
    }
    fn outer<C: Has<Device> + HasDtype>(coords: C) -> String {
        inner(coords.with(Block128))
    }
    assert_eq!(
        outer(Origin.with(F32).with(Cuda)),
        r#"[("dtype", "float32"), ("device", "cuda"), ("block size", "128")]"#
    );
}

#[test]
fn named_subsets_have_the_dtypes_of_their_kind() {
    let dtypes = |coverage: Coverage<(Dtype,)>| -> Vec<_> {
        coverage.points().map(|(dtype,)| dtype).collect()
    };
    let of = |keep: fn(DType) -> bool| -> Vec<_> {
        DType::ALL.into_iter().filter(|&dtype| keep(dtype)).collect()
    };
    assert_eq!(dtypes(Coverage::new().and((FLOATS,))), of(DType::is_floating));
    assert_eq!(dtypes(Coverage::new().and((INTS,))), of(DType::is_integral));
    assert_eq!(dtypes(Coverage::new().and((COMPLEX,))), of(DType::is_complex));
    assert_eq!(dtypes(Coverage::new().and((HALVES,))), [DType::F16, DType::BF16]);
    let ints = Coverage::new().and((SIGNED_INTS,)).and((UNSIGNED_INTS,));
    assert_eq!(dtypes(ints), of(DType::is_integral));
    assert_eq!(Coverage::<(Device,)>::new().and((ALL_DEVICES,)).count(), Device::ALL.len());
}

#[test]
fn coordinates_select_in_any_order() {
    let table = table();
    let one = table.select((Device::Cpu, Dtype::F16, Contiguity::Strided)).unwrap();
    let other = table.select((Contiguity::Strided, Dtype::F16, Device::Cpu)).unwrap();
    assert!(std::ptr::eq(one, other));
    assert_eq!(one(), "cpu half::binary16::f16");
    let mixed = table.try_select((Dtype::F32, Contiguous, Cuda)).unwrap();
    assert_eq!(mixed(), "cuda f32");
    let known = table.select_at(Origin.with(Contiguous).with(F32).with(Cuda)).unwrap();
    assert!(std::ptr::eq(mixed, known));
}

#[test]
fn outside_the_coverage_names_the_nearest_points() {
    let table = table();
    assert!(table.try_select((Device::Cuda, Dtype::F64, Contiguity::Contiguous)).is_none());
    let error = table.select((Device::Cuda, Dtype::F64, Contiguity::Strided)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MissingKernel);
    assert_eq!(
        error.message(),
        "seen: no kernel at device=cuda, dtype=float64, contiguity=strided; nearest covered, where \
         1 axis differs: device=cpu"
    );
    let error = table.select_at(Origin.with(Cuda).with(I32).with(Strided)).unwrap_err();
    assert_eq!(
        error.message(),
        "seen: no kernel at device=cuda, dtype=int32, contiguity=strided; nearest covered, where 2 \
         axes differ: device=cpu, dtype=float16; device=cpu, dtype=bfloat16; device=cpu, \
         dtype=float32; device=cpu, dtype=float64; dtype=float32, contiguity=contiguous"
    );
    let empty = DispatchTable::<Axes3, Text>::builder("nothing").build().unwrap();
    let error = empty.select((Device::Cpu, Dtype::F64, Contiguity::Strided)).unwrap_err();
    assert!(error.message().ends_with("; the table covers nothing"), "{error}");
}

#[test]
fn with_returns_a_copy_and_leaves_the_original_unchanged() {
    let table = table();
    let point = (Device::Cpu, Dtype::I32, Contiguity::Contiguous);
    let text: Text = || "whole".to_owned();
    let more = table.with((Cpu, INTS), plain("whole", text)).unwrap();
    assert_eq!((table.count(), more.count()), (9, 9 + 16));
    assert!(table.try_select(point).is_none());
    assert_eq!(more.select(point).unwrap()(), "whole");
    assert_eq!(more.body_name(point), Some("whole"));
    assert_eq!(more.select((Device::Cpu, Dtype::F32, Contiguity::Strided)).unwrap()(), "cpu f32");
    // The same rules apply: a copy may have a more specific body, but not an equally specific one.
    let pinned = more.with((Cpu, I32, Contiguous), plain("pinned", text)).unwrap();
    assert_eq!(pinned.body_name(point), Some("pinned"));
    assert_eq!(more.body_name(point), Some("whole"));
    assert!(more.with((Cpu, one_of((I32, F32))), plain("again", text)).is_err());
}

#[test]
fn the_body_that_pins_more_axes_wins_in_any_order_of_covering() {
    let text: Text = String::new;
    let name = |table: &DispatchTable<Axes3, Text>, point: Axes3| {
        table.body_name(point).unwrap().to_owned()
    };
    let build = |first_general: bool| {
        let builder = DispatchTable::<Axes3, Text>::builder("order");
        let builder = if first_general {
            builder.cover((), plain("all", text)).cover((Cpu,), plain("cpu", text))
        } else {
            builder.cover((Cpu,), plain("cpu", text)).cover((), plain("all", text))
        };
        builder
            .cover((Cpu, FLOATS), plain("floats", text))
            .cover((F32, Cpu), plain("f32", text))
            .build()
            .unwrap()
    };
    for table in [build(true), build(false)] {
        assert_eq!(table.count(), Space::<Axes3>::COUNT);
        let strided = Contiguity::Strided;
        assert_eq!(name(&table, (Device::Cuda, Dtype::F32, strided)), "all");
        assert_eq!(name(&table, (Device::Cpu, Dtype::I8, strided)), "cpu");
        // It fixes as many axes as "cpu", but restricts one more.
        assert_eq!(name(&table, (Device::Cpu, Dtype::F64, strided)), "floats");
        assert_eq!(name(&table, (Device::Cpu, Dtype::F32, strided)), "f32");
    }
}

#[test]
fn a_tie_names_both_bodies_and_the_point() {
    let text: Text = String::new;
    let tied = || {
        DispatchTable::<Axes3, Text>::builder("tied")
            .cover((Cpu, F32), plain("by_dtype", text))
            .cover((Contiguous, Cpu), plain("by_layout", text))
    };
    let error = tied().build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Registration);
    assert_eq!(
        error.message(),
        "tied: the bodies by_dtype and by_layout pin equally many axes at device=cpu, \
         dtype=float32, contiguity=contiguous; cover it by one of them, or by a third that pins more"
    );
    // A more specific body resolves the tie, in any order of covering.
    let settled = tied().cover((Cpu, F32, Contiguous), plain("both", text)).build().unwrap();
    let point = (Device::Cpu, Dtype::F32, Contiguity::Contiguous);
    assert_eq!(settled.body_name(point), Some("both"));

    let error = DispatchTable::<Axes3, Text>::builder("tied")
        .cover((F32,), plain("a", text))
        .cover((F32,), plain("b", text))
        .build()
        .unwrap_err();
    assert!(error.message().contains("contiguity=contiguous and 3 more points"), "{error}");
}

#[test]
fn one_body_on_overlapping_sub_spaces_is_no_tie() {
    struct Seen;
    impl<C: HasDtype + Has<Device>> Body<C, Text> for Seen {
        fn instance(&self, _: C) -> Text {
            || seen(C::default())
        }
    }
    let table = DispatchTable::<Axes3, Text>::builder("overlap")
        .cover((Cpu, F32), Seen)
        .cover((Contiguous, Cpu), Seen)
        .build()
        .unwrap();
    assert_eq!(table.count(), 2 + 15 - 1);
    assert_eq!(table.body_name((Device::Cpu, Dtype::F32, Contiguity::Contiguous)), Some("Seen"));
}

#[test]
fn a_sub_space_over_other_axes_is_refused() {
    let text: Text = String::new;
    let error = DispatchTable::<(Device, Dtype), Text>::builder("small")
        .cover((Cpu, Contiguous), plain("layout", text))
        .build()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Registration);
    assert_eq!(
        error.message(),
        "small: the sub-space of the body layout names the axis contiguity, which isn't one of its \
         axes (device, dtype)"
    );
    let error = DispatchTable::<(Device, Dtype), Text>::builder("small")
        .cover((Cpu, Cuda), plain("both", text))
        .build()
        .unwrap_err();
    assert!(error.message().ends_with("names the axis device, twice"), "{error}");
    let error = DispatchTable::<(Device, Device), Text>::builder("small").build().unwrap_err();
    assert_eq!(error.message(), "small: the table has two axes of the name device");
}

#[test]
fn closures_are_instances_too() {
    type Closure = Arc<dyn Fn(usize) -> usize + Send + Sync>;
    struct Times(usize);
    impl<C: HasDtype> Body<C, Closure> for Times {
        fn instance(&self, _: C) -> Closure {
            let by = self.0 * size_of::<C::Element>();
            Arc::new(move |x| x * by)
        }
    }
    let table = DispatchTable::<(Dtype, BlockSize), Closure>::builder("times")
        .cover((FLOATS, one_of((Block128, Block512))), Times(10))
        .build()
        .unwrap();
    assert_eq!(table.count(), 8);
    assert_eq!(table.select((BlockSize::Block512, Dtype::F64)).unwrap()(2), 160);
}

#[test]
fn a_map_holds_a_value_per_point() {
    let mut map =
        AxesMap::<(Contiguity, BlockSize), usize>::from_fn(|(c, b)| 10 * c.index() + b.index());
    assert_eq!(*map.get((BlockSize::Block512, Contiguity::Strided)), 12);
    *map.get_mut((Strided, Block512)) += 100;
    assert_eq!(map.set((Contiguous, Block128), 7), 0);
    let values: Vec<_> = map.iter().map(|(_, value)| *value).collect();
    assert_eq!(values, [7, 1, 2, 10, 11, 112]);
    let counts = AxesMap::<Axes3, u8>::default();
    assert_eq!(counts.iter().len(), 60);
}

#[test]
fn tensors_are_contiguous_together_only_if_each_is() {
    let a = Tensor::from_slice(&[1.0_f32; 6], &[2, 3]).unwrap();
    let b = a.transpose(0, 1).unwrap();
    assert_eq!(
        coordinates("op", &[("x", &a), ("y", &a)]).unwrap(),
        (Device::Cpu, Dtype::F32, Contiguity::Contiguous)
    );
    assert_eq!(
        coordinates("op", &[("x", &a), ("y", &b)]).unwrap(),
        (Device::Cpu, Dtype::F32, Contiguity::Strided)
    );
    // The returned tuple is a point's coordinates.
    let (device, dtype, contiguity) = coordinates("op", &[("x", &b)]).unwrap();
    assert_eq!(table().select((device, dtype, contiguity)).unwrap()(), "cpu f32");
}

#[test]
fn mixed_tensors_are_refused_by_the_names_of_their_arguments() {
    let f32s = Tensor::from_slice(&[1.0_f32], &[1]).unwrap();
    let i64s = Tensor::from_slice(&[1_i64], &[1]).unwrap();
    let meta = Tensor::meta(&[1], DType::F32).unwrap();
    let error = coordinates("op", &[("x", &f32s), ("y", &i64s)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DType);
    assert_eq!(
        error.message(),
        "op: arguments of different dtypes: 'x' is float32, 'y' is int64; convert one of them"
    );
    let error = coordinates("op", &[("x", &f32s), ("y", &meta)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device);
    assert!(
        error.message().starts_with("op: arguments on different devices: 'x' is on cpu"),
        "{error}"
    );
    let error = coordinates("op", &[("x", &meta)]).unwrap_err();
    assert_eq!(
        error.message(),
        "op: the axis device has no value meta; its values are cpu and cuda"
    );
    assert_eq!(Device::from_type(AnyDevice::cuda(1).kind()).unwrap(), Device::Cuda);
    assert_eq!(coordinates("op", &[]).unwrap_err().kind(), ErrorKind::Value);
}

#[test]
fn the_dtype_of_the_output_is_an_axis_of_its_own() {
    type Table = DispatchTable<(Dtype, Output<Dtype>), &'static str>;
    let builder = Table::builder("convert")
        .cover((ORDERED, Output(FLOATS)), plain("any", "any"))
        .cover_same(FLOATS, plain("same", "same"));
    let table = builder.build().unwrap();
    assert_eq!(table.count(), 13 * 4);
    assert_eq!(*table.select((Output(F16), Dtype::F32)).unwrap(), "any");
    assert_eq!(*table.select((Dtype::F16, Output(Dtype::F16))).unwrap(), "same");
    let error = table.select((Dtype::C64, Output(Dtype::F64))).unwrap_err();
    let expected = "convert: no kernel at dtype=complex64, output dtype=float64; nearest covered, where 1 \
                    axis differs: dtype=bool; dtype=uint8; ";
    assert!(error.message().starts_with(expected), "{error}");
    let point = (Dtype::I8, Output(Dtype::F64));
    type Pairs = Space<(Dtype, Output<Dtype>)>;
    assert_eq!(Pairs::point(Pairs::index(point)), Some(point));
}

#[test]
fn spaces_and_coverages_iterate_and_count() {
    assert_eq!(Space::<Axes3>::COUNT, 2 * 15 * 2);
    let points: Vec<_> = Space::<Axes3>::points().collect();
    assert_eq!(points.len(), Space::<Axes3>::COUNT);
    for (index, &point) in points.iter().enumerate() {
        assert_eq!(Space::<Axes3>::index(point), index);
        assert_eq!(Space::<Axes3>::point(index), Some(point));
    }
    assert_eq!(Space::<Axes3>::point(points.len()), None);
    let coverage = Coverage::<Axes3>::new().and((FLOATS, Cpu)).and((Contiguous, Cpu));
    assert_eq!(coverage.count(), 4 + 15);
    assert_eq!(coverage.points().count(), coverage.count());
    assert!(coverage.contains((Contiguity::Strided, Device::Cpu, Dtype::F32)));
    assert!(!coverage.contains((Contiguity::Strided, Device::Cpu, Dtype::I32)));
    assert_eq!(coverage.clone().and((FLOATS, Cpu)), coverage);
}

proptest! {
    #[test]
    fn any_order_of_coordinates_is_the_same_point(index in 0..60_usize) {
        let (device, dtype, contiguity) = Space::<Axes3>::point(index).unwrap();
        prop_assert_eq!(Space::<Axes3>::index((dtype, device, contiguity)), index);
        prop_assert_eq!(Space::<Axes3>::index((contiguity, dtype, device)), index);
        prop_assert_eq!(Space::<Axes3>::index((device, contiguity, dtype)), index);
        let reversed = Space::<(Contiguity, Dtype, Device)>::index((device, dtype, contiguity));
        let found = Space::<(Contiguity, Dtype, Device)>::point(reversed);
        prop_assert_eq!(found, Some((contiguity, dtype, device)));
    }
}
