/* test_output.c: how a file comes into being: links, streams, locks, long names, modes; conversions
 * that go on where a killed one has stopped; zeros where a checkpoint should have numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>

#include "ckpt_rig.h"
#include "convert_impl.h"

/* Makes a file of three bytes at path. */
static oct_status make(const char *path, const char *const *inputs, size_t n, oct_error *err)
{
    oct_output o = {.fd = -1};
    *err = (oct_error){0};
    oct_status s = oct_output_check(path, inputs, n, err);
    if (s == OCT_OK)
        s = oct_output_create(&o, path, 3, NULL, err);
    if (s == OCT_OK)
        s = oct_output_write(&o, "new", 3, 0, err);
    if (s == OCT_OK)
        s = oct_output_publish(&o, err);
    oct_output_close(&o);
    return s;
}

static void put(const char *path, const char *text)
{
    rig_write_file(path, text, strlen(text));
}

static void assert_text(const char *path, const char *text)
{
    char have[64] = "";
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    have[fread(have, 1, sizeof have - 1, f)] = 0;
    fclose(f);
    assert_string_equal(have, text);
}

static rig_dir begin(void)
{
    rig_dir d = rig_new(NULL);
    assert_int_equal(chdir(d.path), 0);
    return d;
}

static void end(rig_dir *d)
{
    assert_int_equal(chdir(".."), 0);
    rig_free(d);
}

static void test_links(void **state)
{
    (void)state;
    rig_dir d = begin();
    oct_error err;
    struct stat st;
    assert_int_equal(mkdir("far", 0777), 0);
    put("far/old", "old");
    assert_int_equal(symlink("far/old", "a"), 0);     /* to a file */
    assert_int_equal(symlink("far/not-yet", "b"), 0); /* to none */
    assert_int_equal(symlink("../b", "far/c"), 0);    /* to a link, from another folder */
    assert_int_equal(symlink("loop", "loop"), 0);
    assert_int_equal(symlink("gone/x", "lost"), 0);
    assert_int_equal(make("a", NULL, 0, &err), OCT_OK);
    assert_text("far/old", "new");
    assert_int_equal(make("far/c", NULL, 0, &err), OCT_OK);
    assert_text("far/not-yet", "new");
    assert_true(lstat("a", &st) == 0 && S_ISLNK(st.st_mode));
    assert_true(lstat("b", &st) == 0 && S_ISLNK(st.st_mode));
    assert_true(lstat("far/c", &st) == 0 && S_ISLNK(st.st_mode));
    assert_int_equal(make("loop", NULL, 0, &err), OCT_ERR_IO);
    assert_non_null(strstr(err.text, "loop"));
    assert_int_equal(make("lost", NULL, 0, &err), OCT_ERR_IO);
    assert_non_null(strstr(err.text, "gone/x"));
    end(&d);
}

static void test_inputs(void **state)
{
    (void)state;
    rig_dir d = begin();
    oct_error err;
    const char *const inputs[] = {"missing", "in"};
    put("in", "input");
    assert_int_equal(link("in", "hard"), 0);
    assert_int_equal(symlink("in", "soft"), 0);
    const char *const names[] = {"in", "hard", "soft", "./in"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(make(names[i], inputs, 2, &err), OCT_ERR_ARG);
        assert_non_null(strstr(err.text, "one of the inputs"));
    }
    assert_text("in", "input");
    assert_int_equal(mkfifo("fifo", 0666), 0);
    const char *const odd[] = {"fifo", "/dev/null", "/dev/full", ".", "in/", "", "no/x"};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        assert_true(make(odd[i], NULL, 0, &err) != OCT_OK && err.text[0]);
    end(&d);
}

/* Unchecked, a name is refused all the same: when the file is created, and when it gets its name,
 * where something else may lie by then. */
static void test_unchecked(void **state)
{
    (void)state;
    rig_dir d = begin();
    oct_error err;
    oct_output o = {.fd = -1};
    struct stat st;
    assert_int_equal(mkfifo("fifo", 0666), 0);
    assert_int_equal(symlink("fifo", "link"), 0);
    const char *const odd[] = {"fifo", "link", ".", "new/", ""};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        err = (oct_error){0};
        assert_true(oct_output_create(&o, odd[i], 3, NULL, &err) != OCT_OK && err.text[0]);
        oct_output_close(&o);
    }
    err = (oct_error){0};
    assert_int_equal(oct_output_create(&o, "late", 3, NULL, &err), OCT_OK);
    assert_int_equal(mkfifo("late", 0666), 0);
    assert_int_equal(oct_output_publish(&o, &err), OCT_ERR_ARG);
    assert_non_null(strstr(err.text, "not a regular file"));
    oct_output_close(&o);
    assert_true(stat("late", &st) == 0 && S_ISFIFO(st.st_mode));
    assert_true(stat("fifo", &st) == 0 && S_ISFIFO(st.st_mode));
    end(&d);
}

/* A file that a standard stream leads to is not replaced, under any of its names. */
static void test_streams(void **state)
{
    (void)state;
    rig_dir d = begin();
    oct_error err;
    int keep = dup(1), fd = open("log", O_RDWR | O_CREAT | O_APPEND, 0666);
    const char *const names[] = {"log", "/dev/stdout", "/proc/self/fd/1", "/dev/fd/1"};
    fflush(stdout);
    dup2(fd, 1);
    oct_status s[4];
    for (int i = 0; i < 4; i++)
        s[i] = make(names[i], NULL, 0, &err);
    dup2(keep, 1);
    for (int i = 0; i < 4; i++)
        assert_int_equal(s[i], OCT_ERR_ARG);
    assert_non_null(strstr(err.text, "standard output"));
    close(fd);
    close(keep);
    end(&d);
}

static void test_names_and_modes(void **state)
{
    (void)state;
    rig_dir d = begin();
    oct_error err;
    struct stat st;
    char longest[256];
    memset(longest, 'n', 255);
    longest[255] = 0;
    assert_int_equal(make(longest, NULL, 0, &err), OCT_OK);
    put("private", "old");
    assert_int_equal(chmod("private", 0600), 0);
    assert_int_equal(make("private", NULL, 0, &err), OCT_OK);
    assert_true(stat("private", &st) == 0 && (st.st_mode & 0777) == 0600);
    put("x.new", "mine"); /* names that look like ours and are not */
    put("x.tmp-", "mine");
    assert_int_equal(make("x", NULL, 0, &err), OCT_OK);
    assert_text("x.new", "mine");
    assert_text("x.tmp-", "mine");
    end(&d);
}

static void test_folder_gone(void **state)
{
    (void)state;
    rig_dir d = begin();
    oct_error err;
    int here = open(".", O_RDONLY | O_DIRECTORY);
    assert_int_equal(mkdir("gone", 0777), 0);
    assert_int_equal(chdir("gone"), 0);
    assert_int_equal(rmdir("../gone"), 0);
    assert_int_equal(make("y", NULL, 0, &err), OCT_ERR_IO);
    assert_int_equal(make("z/y", NULL, 0, &err), OCT_ERR_IO);
    assert_int_equal(fchdir(here), 0);
    close(here);
    end(&d);
}

/* Two at once: the second is refused, whatever the output's name leads through. */
static void test_second(void **state)
{
    (void)state;
    rig_dir d = begin();
    oct_error err = {0};
    oct_output o = {.fd = -1};
    assert_int_equal(symlink("out", "link"), 0);
    assert_int_equal(oct_output_create(&o, "out", 3, NULL, &err), OCT_OK);
    assert_int_equal(make("out", NULL, 0, &err), OCT_ERR_IO);
    assert_non_null(strstr(err.text, "another process is making this file"));
    assert_int_equal(make("link", NULL, 0, &err), OCT_ERR_IO);
    assert_int_equal(make("out2", NULL, 0, &err), OCT_OK);
    oct_output_close(&o);
    assert_int_equal(make("link", NULL, 0, &err), OCT_OK);
    assert_text("out", "new");
    end(&d);
}

/* ---- resuming ------------------------------------------------------------------------------- */

typedef struct killer {
    int pieces, at; /* killed when so many have been written */
    oct_convert_phase phase;
} killer;

static void count_pieces(void *ctx, const oct_convert_progress *p)
{
    killer *k = ctx;
    if (p->phase == k->phase && p->done > 0 && ++k->pieces == k->at)
        kill(getpid(), SIGKILL);
}

/* Converts in a child that is killed at some piece, or in phase's first if at is 1. */
static void convert_and_die(const rig_dir *d, oct_convert_phase phase, int at)
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        killer k = {.at = at, .phase = phase};
        oct_convert_params p = {.checkpoint = d->ckpt,
                                .out = d->out,
                                .no_tokenizer = true,
                                .n_threads = 3,
                                .progress = count_pieces,
                                .progress_ctx = &k};
        oct_convert_report r;
        oct_error err;
        (void)rig_convert_with(&p, &r, &err);
        _exit(1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
}

static bool warned(const oct_convert_report *r, const char *what)
{
    for (size_t i = 0; i < r->warnings.n; i++)
        if (strstr(r->warnings.line[i], what))
            return true;
    return false;
}

static char *only_temp(const rig_dir *d)
{
    char *path = NULL;
    DIR *dir = opendir(d->path);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        if (strstr(e->d_name, ".tmp-")) {
            assert_null(path);
            assert_true(asprintf(&path, "%s/%s", d->path, e->d_name) > 0);
        }
    closedir(dir);
    return path;
}

static void assert_converts(const rig_dir *d, const rig_map *want, bool goes_on)
{
    oct_convert_report r;
    oct_error err;
    if (rig_convert(d, &r, &err) != OCT_OK)
        fail_msg("%s", err.text);
    assert_true(warned(&r, "going on with") == goes_on);
    oct_convert_report_free(&r);
    rig_map have = rig_map_file(d->out);
    assert_int_equal(have.n, want->n);
    assert_memory_equal(have.data, want->data, want->n);
    rig_unmap(have);
    assert_int_equal(unlink(d->out), 0);
    assert_null(only_temp(d));
}

static void test_resume(void **state)
{
    (void)state;
    rig_dir d = rig_new(&rig_small);
    char other[160];
    oct_convert_report r;
    oct_error err;
    assert_int_equal(rig_convert(&d, &r, &err), OCT_OK);
    oct_convert_report_free(&r);
    rig_map want = rig_map_file(d.out);
    snprintf(other, sizeof other, "%s/want", d.path);
    assert_int_equal(rename(d.out, other), 0);
    static const int at[] = {1, 2, 17, 60};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        convert_and_die(&d, OCT_CONVERT_WRITE, at[i]);
        assert_converts(&d, &want, true);
    }
    convert_and_die(&d, OCT_CONVERT_VERIFY, 5);
    assert_converts(&d, &want, true);
    /* Killed twice, then damaged: in what was written, and in the list of it. */
    for (int damage = 0; damage < 2; damage++) {
        convert_and_die(&d, OCT_CONVERT_WRITE, 20);
        convert_and_die(&d, OCT_CONVERT_WRITE, 40);
        char *temp = only_temp(&d);
        assert_non_null(temp);
        int fd = open(temp, O_RDWR);
        off_t n = lseek(fd, 0, SEEK_END), step = damage ? n : 4096,
              place = damage ? (off_t)want.n + 40 : 3 * 4096;
        uint8_t junk[100];
        memset(junk, 0x5a, sizeof junk);
        assert_true(n > (off_t)want.n);
        for (; place + 100 < (damage ? n : (off_t)want.n); place += step)
            assert_int_equal(pwrite(fd, junk, sizeof junk, place), 100);
        close(fd);
        free(temp);
        assert_converts(&d, &want, true);
    }
    /* Of another work nothing is taken over: the checkpoint has changed. It stays, and is named. */
    convert_and_die(&d, OCT_CONVERT_WRITE, 20);
    char file[160];
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000}};
    assert_int_equal(utimensat(AT_FDCWD, rig_file(&d, 3, file), times, 0), 0);
    assert_int_equal(rig_convert(&d, &r, &err), OCT_OK);
    assert_true(!warned(&r, "going on with") && warned(&r, "left by a run that was interrupted"));
    oct_convert_report_free(&r);
    char *temp = only_temp(&d);
    assert_non_null(temp);
    free(temp);
    rig_unmap(want);
    rig_free(&d);
}

/* ---- zeros ---------------------------------------------------------------------------------- */

/* Zeros at a place of one of the files: as bytes, or as a hole. */
static void zero(const rig_dir *d, int file, off_t at, size_t n, bool hole)
{
    char path[160];
    int fd = open(rig_file(d, file, path), O_RDWR);
    assert_true(fd >= 0);
    if (hole) {
        assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, (off_t)n),
                         0);
    } else {
        uint8_t *zeros = calloc(1, n);
        assert_int_equal(pwrite(fd, zeros, n, at), (ssize_t)n);
        free(zeros);
    }
    close(fd);
}

/* A model whose files are larger than a few pages. */
static const mk_spec pages = {.layers = 2,
                              .vocab = 320,
                              .d = 256,
                              .ffn = 512,
                              .q_heads = 8,
                              .kv_heads = 8,
                              .head = 32,
                              .experts = 3,
                              .used = 2,
                              .context = 64,
                              .groups = 8,
                              .seed = 7};

static void test_zeros(void **state)
{
    (void)state;
    oct_convert_report r;
    oct_error err;
    for (int file = 0; file < 8; file++) {
        rig_dir d = rig_new(&pages);
        char path[160];
        struct stat st;
        assert_int_equal(stat(rig_file(&d, file, path), &st), 0);
        bool large = st.st_size > 40000;
        if (large)
            zero(&d, file, 16384, 4096, false);
        assert_int_equal(rig_convert(&d, &r, &err), OCT_OK);
        assert_true(warned(&r, "zero") == large);
        assert_true(!large || warned(&r, strrchr(path, '/') + 1));
        oct_convert_report_free(&r);
        if (large) {
            zero(&d, file, 16384, 8192, true);
            assert_true(rig_convert(&d, &r, &err) != OCT_OK);
            assert_non_null(strstr(err.text, "8192 of its"));
            assert_non_null(strstr(err.text, "hole"));
            oct_convert_report_free(&r);
            assert_int_equal(rig_count_outputs(&d), 1); /* the first conversion's */
        }
        rig_free(&d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_links),           cmocka_unit_test(test_inputs),
        cmocka_unit_test(test_unchecked),       cmocka_unit_test(test_streams),
        cmocka_unit_test(test_names_and_modes), cmocka_unit_test(test_folder_gone),
        cmocka_unit_test(test_second),          cmocka_unit_test(test_resume),
        cmocka_unit_test(test_zeros),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
