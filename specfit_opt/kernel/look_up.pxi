# Looking up from long work, outside the inner loops: at the clock for the deadline, and now and then
# for what asks a solve to end early. A solve of less than some tenths of a millisecond never does.

# Words of rows between two looks at the clock: some tenths of a millisecond.
cdef int64_t STRETCH = 1 << 17
# Seconds between two looks for signals. They take the GIL, for which others may wait.
cdef double PATIENCE = 0.04


cdef inline Outcome tick(const Problem *p, Scratch *s, int64_t work) noexcept nogil:
    """Count `work`, in words of rows, and look up when it is due."""
    s.work += work
    if s.work < STRETCH and p.deadline == INFINITY:
        return DONE
    return look_up(p, s)


cdef Outcome look_up(const Problem *p, Scratch *s) noexcept nogil:
    cdef double now = sf_now()
    s.work = 0
    if s.watched:
        if s.next_look == 0.0:
            s.next_look = now + PATIENCE
        elif now > s.next_look:
            if ask_python(s) != DONE:
                return STOPPED
            s.next_look = sf_now() + PATIENCE
    return LATE if now > p.deadline else DONE


cdef Outcome ask_python(Scratch *s) noexcept with gil:
    """Run the handlers of signals and keep what they, or a request to stop, raise."""
    try:
        if not interrupt.is_watched():  # a thread that nothing reaches looks no more
            s.watched = False
            return DONE
        PyErr_CheckSignals()
        interrupt.look_up()
    except BaseException as error:
        Py_INCREF(error)
        s.error = <PyObject *> error
        return STOPPED
    return DONE
