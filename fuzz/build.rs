//! Links all of the thread functions that libFuzzer's C++ library uses. The library refers to them
//! weakly, so a static program would lack them.

const FUNCTIONS: &[&str] = &[
    "pthread_cancel",
    "pthread_cond_broadcast",
    "pthread_cond_destroy",
    "pthread_cond_init",
    "pthread_cond_signal",
    "pthread_cond_timedwait",
    "pthread_cond_wait",
    "pthread_create",
    "pthread_detach",
    "pthread_equal",
    "pthread_getspecific",
    "pthread_join",
    "pthread_key_create",
    "pthread_key_delete",
    "pthread_mutex_destroy",
    "pthread_mutex_init",
    "pthread_mutex_lock",
    "pthread_mutex_timedlock",
    "pthread_mutex_trylock",
    "pthread_mutex_unlock",
    "pthread_mutexattr_destroy",
    "pthread_mutexattr_init",
    "pthread_mutexattr_settype",
    "pthread_once",
    "pthread_self",
    "pthread_setspecific",
    "sched_yield",
];

fn main() {
    for function in FUNCTIONS {
        println!("cargo:rustc-link-arg=-Wl,-u,{function}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
