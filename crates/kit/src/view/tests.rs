//! Tests of `include/keyfold_views.h`: the system's C++ compiler asserts that sizes and offsets equal
//! Rust's, and the compiled code reads and writes through views made here.

use std::ffi::{CString, c_void};
use std::fmt::Write as _;
use std::mem::{align_of, offset_of};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{
    Contiguous, Dim, FLAT_DIMS, FlatDims, FlatView, FlatViewMut, RankedView, RankedViewMut, Strided,
};

const HEADER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/include");

/// The expressions that C++ must evaluate to these numbers.
fn expectations() -> Vec<(&'static str, usize)> {
    type Flat = FlatView<'static, f32, Strided>;
    type Whole = FlatView<'static, f32, Contiguous>;
    type Ranked = RankedView<'static, f64, 3, Strided>;
    type Dense = RankedView<'static, f64, 3, Contiguous>;
    let dims = offset_of!(Flat, dims);
    vec![
        ("FLAT_DIMS", FLAT_DIMS),
        ("sizeof(Dim)", size_of::<Dim>()),
        ("alignof(Dim)", align_of::<Dim>()),
        ("offsetof(Dim, size)", offset_of!(Dim, size)),
        ("offsetof(Dim, stride)", offset_of!(Dim, stride)),
        ("offsetof(Dim, magic)", offset_of!(Dim, magic)),
        ("offsetof(Dim, shift)", offset_of!(Dim, shift)),
        ("sizeof(FlatContiguous<float>)", size_of::<Whole>()),
        ("offsetof(FlatContiguous<float>, count)", offset_of!(Whole, count)),
        ("sizeof(FlatStrided<const float>)", size_of::<Flat>()),
        ("sizeof(FlatStrided<float>)", size_of::<FlatViewMut<'static, f32, Strided>>()),
        ("alignof(FlatStrided<float>)", align_of::<Flat>()),
        ("offsetof(FlatStrided<float>, data)", offset_of!(Flat, data)),
        ("offsetof(FlatStrided<float>, count)", offset_of!(Flat, count)),
        ("offsetof(FlatStrided<float>, rank)", dims + offset_of!(FlatDims, rank)),
        ("offsetof(FlatStrided<float>, dims)", dims + offset_of!(FlatDims, dims)),
        ("sizeof(RankedContiguous<double COMMA 3>)", size_of::<Dense>()),
        ("offsetof(RankedContiguous<double COMMA 3>, sizes)", offset_of!(Dense, sizes)),
        ("sizeof(RankedStrided<double COMMA 3>)", size_of::<Ranked>()),
        (
            "sizeof(RankedStrided<const double COMMA 3>)",
            size_of::<RankedViewMut<'static, f64, 3, Strided>>(),
        ),
        ("offsetof(RankedStrided<double COMMA 3>, sizes)", offset_of!(Ranked, sizes)),
        ("offsetof(RankedStrided<double COMMA 3>, strides)", offset_of!(Ranked, strides)),
        ("sizeof(RankedStrided<double COMMA 0>)", size_of::<RankedView<'static, f64, 0>>()),
        (
            "sizeof(RankedContiguous<double COMMA 0>)",
            size_of::<RankedView<'static, f64, 0, Contiguous>>(),
        ),
    ]
}

const FUNCTIONS: &str = r#"
extern "C" float read_whole(const FlatContiguous<const float> &x, Size i) { return x[i]; }
extern "C" float read_flat(const FlatStrided<const float> &x, Size i) { return x[i]; }
extern "C" double read_dense(const RankedContiguous<const double, 3> &x, Size i, Size j, Size k) {
    return x(i, j, k);
}
extern "C" double read_ranked(const RankedStrided<const double, 3> &x, Size i, Size j, Size k) {
    return x(i, j, k);
}
extern "C" double read_scalar(const RankedStrided<const double, 0> &x) { return x(); }
extern "C" void write_flat(const FlatStrided<float> &x, Size i, float value) { x[i] = value; }
extern "C" void write_ranked(const RankedStrided<double, 3> &x, Size i, Size j, Size k, double value) {
    x(i, j, k) = value;
}
"#;

/// A directory for this test, removed when dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn compile(source: &Path, arguments: &[&str]) {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let output = Command::new(compiler)
        .args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-I", HEADER])
        .args(arguments)
        .arg(source)
        .output()
        .expect("the test needs a C++ compiler: c++, or what CXX names");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A loaded library, which is never unloaded.
struct Library(*mut c_void);

impl Library {
    fn open(path: &Path) -> Library {
        let path = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the library has no initialisers of its own.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null());
        Library(handle)
    }

    /// Looks up a function of the library.
    ///
    /// # Safety
    /// `F` is the function's type.
    unsafe fn function<F: Copy>(&self, name: &str) -> F {
        let name = CString::new(name).unwrap();
        // SAFETY: the handle is of an open library.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!address.is_null() && size_of::<F>() == size_of_val(&address));
        // SAFETY: the caller's promise; both types are an address.
        unsafe { std::mem::transmute_copy(&address) }
    }
}

type ReadFlat<V> = extern "C" fn(&V, u64) -> f32;
type ReadRanked<V> = extern "C" fn(&V, u64, u64, u64) -> f64;

#[test]
fn the_header_has_the_same_layout_and_reads_the_same_elements() {
    let directory = std::env::temp_dir().join(format!("keyfold-views-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let scratch = Scratch(directory);

    // The header alone, without any system header, as a runtime compiler of CUDA C compiles it.
    let alone = scratch.0.join("alone.cpp");
    let kernel = "#include \"keyfold_views.h\"\n__global__ void add(keyfold::FlatStrided<const float> x,\n\
         keyfold::FlatContiguous<float> out) { out[0] += x[1]; }\n";
    std::fs::write(&alone, kernel).unwrap();
    let cuda = [
        "-D__CUDACC_RTC__",
        "-D__host__=",
        "-D__device__=",
        "-D__global__=",
        "-D__forceinline__=inline",
    ];
    let only_check = ["-fsyntax-only", "-nostdinc", "-nostdinc++"];
    compile(&alone, &[&cuda[..], &only_check[..]].concat());

    let mut text = "#include <cstddef>\n#include \"keyfold_views.h\"\nusing namespace keyfold;\n\
         #define COMMA ,\n#pragma GCC diagnostic ignored \"-Winvalid-offsetof\"\n"
        .to_owned();
    for (what, number) in expectations() {
        writeln!(text, "static_assert({what} == {number}, \"{what} is not {number}\");").unwrap();
    }
    text += FUNCTIONS;
    let (source, library) = (scratch.0.join("views.cpp"), scratch.0.join("views.so"));
    std::fs::write(&source, text).unwrap();
    compile(&source, &["-shared", "-fPIC", "-o", library.to_str().unwrap()]);
    let library = Library::open(&library);

    let data: Vec<f32> = (0..200).map(|i| i as f32).collect();
    let whole = FlatView::new(&data);
    let layouts: [(&[usize], &[isize], usize); 4] =
        [(&[5, 6, 4], &[1, 20, -5], 15), (&[3, 7], &[0, -2], 12), (&[], &[], 3), (&[150], &[1], 0)];
    // SAFETY: the functions are written above, for views of these types.
    unsafe {
        let read = library.function::<ReadFlat<FlatView<'_, f32, Contiguous>>>("read_whole");
        assert!((0..200).all(|i| read(&whole, i as u64) == whole.at(i)));
        let read = library.function::<ReadFlat<FlatView<'_, f32>>>("read_flat");
        for (shape, strides, offset) in layouts {
            let flat = FlatView::from_slice(&data, shape, strides, offset).unwrap();
            assert!((0..flat.len()).all(|i| read(&flat, i as u64) == flat.at(i)), "{shape:?}");
        }
    }

    let data: Vec<f64> = (0..120).map(f64::from).collect();
    let indices = || (0..4).flat_map(|i| (0..5).flat_map(move |j| (0..6).map(move |k| [i, j, k])));
    let dense: RankedView<'_, f64, 3, Contiguous> =
        RankedView::from_slice(&data, [4, 5, 6], [30, 6, 1], 0).unwrap();
    let turned: RankedView<'_, f64, 3> =
        RankedView::from_slice(&data, [4, 5, 6], [1, -4, 20], 16).unwrap();
    let scalar: RankedView<'_, f64, 0> = RankedView::from_slice(&data, [], [], 7).unwrap();
    // SAFETY: as above.
    unsafe {
        let read = library.function::<ReadRanked<RankedView<'_, f64, 3, Contiguous>>>("read_dense");
        let strided = library.function::<ReadRanked<RankedView<'_, f64, 3>>>("read_ranked");
        for [i, j, k] in indices() {
            let index = [i, j, k].map(|i| i as usize);
            assert_eq!(read(&dense, i, j, k), dense.at(index));
            assert_eq!(strided(&turned, i, j, k), turned.at(index));
        }
        let read = library.function::<extern "C" fn(&RankedView<'_, f64, 0>) -> f64>("read_scalar");
        assert_eq!(read(&scalar), 7.0);
    }

    let mut floats = vec![0.0_f32; 12];
    let flat = FlatViewMut::<f32>::from_slice(&mut floats, &[3, 4], &[1, 3], 0).unwrap();
    let mut doubles = vec![0.0_f64; 120];
    let ranked =
        RankedViewMut::<f64, 3>::from_slice(&mut doubles, [4, 5, 6], [1, 4, 20], 0).unwrap();
    // SAFETY: as above; no other code accesses the memory.
    unsafe {
        let write =
            library.function::<extern "C" fn(&FlatViewMut<'_, f32>, u64, f32)>("write_flat");
        (0..12).for_each(|i| write(&flat, i, i as f32));
        let write = library
            .function::<extern "C" fn(&RankedViewMut<'_, f64, 3>, u64, u64, u64, f64)>(
                "write_ranked",
            );
        indices().for_each(|[i, j, k]| write(&ranked, i, j, k, (100 * i + 10 * j + k) as f64));
    }
    assert_eq!(floats, [0., 4., 8., 1., 5., 9., 2., 6., 10., 3., 7., 11.]);
    assert!(
        indices().all(
            |[i, j, k]| doubles[(i + 4 * j + 20 * k) as usize] == (100 * i + 10 * j + k) as f64
        )
    );
}
