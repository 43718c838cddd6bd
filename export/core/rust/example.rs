//! A student in Rust: cc -O2 -c edgedistill.c && rustc -O rust/example.rs -C link-arg=edgedistill.o -C link-arg=-lm && ./example student.bin "a text"
//! In a package, the `cc` crate compiles edgedistill.c in build.rs. A student is read-only: threads share it.
use std::ffi::{c_char, c_int, c_void, CStr};

extern "C" {
    fn ed_open(data: *const c_void, size: usize, error: *mut *const c_char) -> *mut c_void;
    fn ed_size(student: *const c_void) -> usize;
    fn ed_embed(student: *const c_void, text: *const c_char, size: usize, role: c_int, embedding: *mut f32) -> *const c_char;
    fn ed_close(student: *mut c_void);
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let data = std::fs::read(&arguments[1]).expect(&arguments[1]); // must stay while the student is open; malloc's are aligned
    let mut error = std::ptr::null();
    let student = unsafe { ed_open(data.as_ptr().cast(), data.len(), &mut error) };
    assert!(!student.is_null(), "{:?}", unsafe { CStr::from_ptr(error) });
    let mut embedding = vec![0f32; unsafe { ed_size(student) }];
    let (text, role) = (&arguments[2], 0); // ED_TEXT
    error = unsafe { ed_embed(student, text.as_ptr().cast(), text.len(), role, embedding.as_mut_ptr()) };
    assert!(error.is_null(), "{:?}", unsafe { CStr::from_ptr(error) });
    println!("{:?}", embedding);
    unsafe { ed_close(student) };
}
