# Run as a test with -DNM=… and -DOBJECTS=a.o,b.o: fails when an object that was compiled for one
# instruction set defines a weak function, which the linker could pick for everyone (ops/x86/isa.h).
string(REPLACE "," ";" objects "${OBJECTS}")
execute_process(COMMAND ${NM} -C --defined-only ${objects} OUTPUT_VARIABLE symbols
                COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]* W [^\n]*" weak "${symbols}")
if(weak)
  list(JOIN weak "\n" weak)
  message(FATAL_ERROR "weak functions in objects of one instruction set:\n${weak}")
endif()
